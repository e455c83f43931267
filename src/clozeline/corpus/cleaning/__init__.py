"""Stage `preprocess`: raw text is read, cleaned, freed of duplicates, and split."""
