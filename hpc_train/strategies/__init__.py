"""How ranks come to agree on an update of the variables."""
