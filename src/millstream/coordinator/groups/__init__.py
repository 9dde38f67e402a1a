"""The state machine of groups: their members, and the offsets they commit."""
