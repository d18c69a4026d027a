"""Tables: what their columns are found to be, and how they are to be used."""
