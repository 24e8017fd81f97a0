"""Who may change a running node, and what of it: by signed orders, each taken once."""

from .operator import Operator
from .orders import Order
from .settings import with_orders

__all__ = ["Operator", "Order", "with_orders"]
