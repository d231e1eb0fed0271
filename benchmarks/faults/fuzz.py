"""Placeholder"""
def fuzz(tally, seed):
    """x"""
