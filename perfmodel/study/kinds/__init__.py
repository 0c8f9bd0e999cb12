"""Kinds of sections: a module here has a ``SECTION``, a class whose fields are what a study may say and whose ``build`` gives a Report."""
