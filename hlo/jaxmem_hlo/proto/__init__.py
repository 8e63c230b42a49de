"""Minimal protocol buffer messages for HLO modules."""
