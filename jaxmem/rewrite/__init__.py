"""What can be changed in a scheduled module besides its order."""

from jaxmem.rewrite.copies import Copies, RemovableCopy, find_copies

__all__ = ["Copies", "RemovableCopy", "find_copies"]
