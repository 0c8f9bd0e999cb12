"""The commands, one per file: each reads its options, computes, and hands a Report to ``report``."""
