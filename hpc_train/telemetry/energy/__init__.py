"""Energy as machines measure it, in joules; nothing here estimates."""
