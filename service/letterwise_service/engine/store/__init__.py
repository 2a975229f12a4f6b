"""Kept prefixes: one store, two tiers, within bounds."""
