"""Labelled clouds in the folders in which they are published: SemanticKITTI, nuScenes, ScanNet.

``scans`` defines a labelled cloud, and reads labels; each publisher has a file for its folders and
classes; ``recognise`` tells folders apart. Nothing is downloaded: folders are the user's own. May
import ``layoutconv.errors``, the readers of point files and NumPy.
"""
