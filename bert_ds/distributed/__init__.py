"""Ranks: who they are, how they find each other, and what happens when one fails."""
