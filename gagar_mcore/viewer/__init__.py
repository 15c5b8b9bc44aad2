"""Views over a run directory: the report page and the closing words on the terminal."""
