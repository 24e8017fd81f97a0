from tests.hyperbeam.conftest import node, start_node

__all__ = ["node", "start_node"]
