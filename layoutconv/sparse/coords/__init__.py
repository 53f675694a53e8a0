"""Voxels and their coordinates: points to voxels and back, keys, tables, sparse tensors."""
