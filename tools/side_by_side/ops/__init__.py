"""The ops around attention, likewise."""
