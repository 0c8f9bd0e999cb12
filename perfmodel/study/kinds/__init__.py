"""Kinds of sections. Each module has a ``SECTION``: a class whose fields a study may set and whose ``build`` gives a Report."""
