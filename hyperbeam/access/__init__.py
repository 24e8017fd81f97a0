"""Who may ask the node, how much, and whose address is believed."""

from .credentials import Access, Grant
from .keys import ApiKey, KeyStore
from .quotas import Quota

__all__ = ["Access", "ApiKey", "Grant", "KeyStore", "Quota"]
