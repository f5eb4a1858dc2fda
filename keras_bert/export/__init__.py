"""A preset as what others can run: a SavedModel, text in and answers out, or a LiteRT file."""

from keras_bert.export.light import PRECISIONS
from keras_bert.export.litert import export_litert
from keras_bert.export.loading import Exported, load_saved_model, versions
from keras_bert.export.saved_model import check_exportable, export_saved_model
from keras_bert.export.self_check import ExportError

__all__ = [
    "PRECISIONS",
    "ExportError",
    "Exported",
    "check_exportable",
    "export_litert",
    "export_saved_model",
    "load_saved_model",
    "versions",
]
