"""What a site sets for all of its users: its site file, and tiers."""
