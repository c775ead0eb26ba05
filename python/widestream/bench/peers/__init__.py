"""What people have today, with its own recommended settings: one module a peer."""
