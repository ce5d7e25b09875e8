"""What a run found, for people: tables in the terminal, figures, one self-contained HTML page."""
