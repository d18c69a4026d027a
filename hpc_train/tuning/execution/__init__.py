"""How trials run: slots, the ranks in them, and the driver that fills them."""
