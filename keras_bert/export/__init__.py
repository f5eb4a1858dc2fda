"""SavedModel: a preset as one folder that TensorFlow alone can run, text in, answers out."""

from keras_bert.export.loading import Exported, load_saved_model, versions
from keras_bert.export.saved_model import check_exportable, export_saved_model
from keras_bert.export.self_check import ExportError

__all__ = [
    "ExportError",
    "Exported",
    "check_exportable",
    "export_saved_model",
    "load_saved_model",
    "versions",
]
