"""Rematerialization: tensors that backward keeps or builds again, and the best schedule. Calling the package runs the command."""

from perfmodel.core.plugins import make_callable

make_callable(__name__)
