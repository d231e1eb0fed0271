"""The run folder: its layout, what is written to it and read from it."""
