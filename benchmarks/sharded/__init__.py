"""Sharded train steps for described devices."""
