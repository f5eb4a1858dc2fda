"""Exports served without Python: TensorFlow's own loader in C, and TF Serving's wire over it."""
