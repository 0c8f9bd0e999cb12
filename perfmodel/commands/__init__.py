"""One command per file: parse, call, hand a Report to ``report``."""
