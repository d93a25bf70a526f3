"""The few things that waiting and blocking code do differently. Each name is in both modules, and means the same."""
