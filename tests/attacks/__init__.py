"""Attacks: what a login with the least rights can try against the engine, and a foreign namespace.

Each of these did harm once, or guards what must never be possible."""
