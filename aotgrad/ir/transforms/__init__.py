"""aotgrad."""
