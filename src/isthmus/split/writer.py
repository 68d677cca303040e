"""What the writers of both formats share: instructions one after the other, and constants before their first reader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from isthmus.split.network import Key, Network
from isthmus.split.regions import Compute, ComputeWhole, CopyRows, Join, PrepareOperand, TileInstruction


class FileWriter(ABC):
    """One split file as it is written.

    Parameters
    ----------
    network
        The steps in the order that instructions count them in.
    makers
        The nodes of the file whose results are constants, by result.
    """

    def __init__(self, network: Network, makers: Mapping[Any, Any]) -> None:
        self.network, self._makers = network, makers
        self._added: set[int] = set()

    def add_all(self, instructions: Iterable[TileInstruction]) -> None:
        """Add the nodes of all instructions."""
        for one in instructions:
            if isinstance(one, ComputeWhole | Compute):
                source = self.network.steps[one.step].source
                self.add_constants(self.reads_of(source))
                self.add_node(source) if isinstance(one, ComputeWhole) else self.add_tile(one, source)
            elif isinstance(one, CopyRows):
                self.add_slice(one)
            elif isinstance(one, Join):
                self.add_join(one)
            elif isinstance(one, PrepareOperand):
                self.add_padding(one)

    def add_constants(self, keys: Iterable[Key]) -> None:
        """Add the nodes that some constants come from, each after those that it reads."""
        for key in keys:
            stack = [self._makers[key]] if key in self._makers else []
            while stack:
                node = stack[-1]
                makers = [self._makers[key] for key in self.reads_of(node) if key in self._makers]
                missing = [maker for maker in makers if id(maker) not in self._added]
                if missing and id(node) not in self._added:
                    stack += missing
                    continue
                stack.pop()
                if id(node) not in self._added:
                    self._added.add(id(node))
                    self.add_node(node)

    @abstractmethod
    def reads_of(self, node: Any) -> Iterable[Key]:
        """List the tensors that a node of the file reads."""

    @abstractmethod
    def add_node(self, node: Any) -> None:
        """Add a node of the file as it is."""

    @abstractmethod
    def add_tile(self, one: Compute, node: Any) -> None:
        """Add a node that computes some rows of what a node of the file computes."""

    @abstractmethod
    def add_slice(self, one: CopyRows) -> None:
        """Add a slice of rows."""

    @abstractmethod
    def add_join(self, one: Join) -> None:
        """Add a concatenation of rows."""

    @abstractmethod
    def add_padding(self, one: PrepareOperand) -> None:
        """Add padding before a node that computes some rows."""
