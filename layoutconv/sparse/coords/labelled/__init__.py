"""Labelled clouds in the folders in which they are published: SemanticKITTI, nuScenes, ScanNet.

``scans`` says what a labelled cloud is, and reads labels; a file per publisher knows its folders
and its classes; ``recognise`` tells one folder from another. Nothing is downloaded: folders are the
user's own. May import ``layoutconv.errors``, the readers of point files and NumPy.
"""
