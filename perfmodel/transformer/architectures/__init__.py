"""Rules by ``model_type`` of Hugging Face's config.json: each turns the fields into a ModelSpec.

To add an architecture is to add a file with its name and a function ``build``; a family shares a file that lists its rules in ``BUILDS``.
For omitted fields, a rule states the defaults of the configuration class in huggingface/transformers
(src/transformers/models/<model_type>/configuration_*.py).
"""

from perfmodel.core.errors import DataError, suggest
from perfmodel.core.plugins import plugins
from perfmodel.transformer.architectures._parts import HfFields
from perfmodel.transformer.spec import ModelSpec


def known() -> list[str]:
    """Every ``model_type`` with a rule."""
    return sorted(name for name, _ in plugins([__name__], "build", "BUILDS"))


def build(fields: HfFields) -> ModelSpec:
    """The model that ``fields`` describe, without name and source; DataError names the missing rule or field."""
    architecture = fields.architecture
    for name, rule in plugins([__name__], "build", "BUILDS", architecture):
        if name == architecture:
            model: ModelSpec = rule(fields)
            return model
    raise DataError(f"model_type: no rule for the architecture {architecture!r}", suggest(architecture, known()))
