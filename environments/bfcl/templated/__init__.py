"""Make held-out evaluation sets from slices of BFCL's reference paths, with templated user turns."""
