"""Charts: their data (``schema``), their layout on the page, and their description in words."""
