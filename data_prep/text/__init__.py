"""Input files to cleaned documents and sentences."""
