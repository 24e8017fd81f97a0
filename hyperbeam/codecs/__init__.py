"""Messages to bytes and back, as pure functions: no I/O, no keys, no clock."""
