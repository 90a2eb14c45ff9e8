"""Checks for the exercises: each says what is wrong, never only that it is wrong.

In a lesson, ``check("2.1", answer)`` judges an answer, and ``progress()`` lists all
exercises. To add one, add a block to its lesson's file, as ``engine.py`` describes.
"""

from . import (
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_07,
    lesson_08,
    lesson_09,
    lesson_10,
    lesson_11,
    lesson_12,
    lesson_13,
)
from .engine import EXERCISES, check, progress

__all__ = [
    "EXERCISES",
    "check",
    "lesson_01",
    "lesson_02",
    "lesson_03",
    "lesson_04",
    "lesson_05",
    "lesson_06",
    "lesson_07",
    "lesson_08",
    "lesson_09",
    "lesson_10",
    "lesson_11",
    "lesson_12",
    "lesson_13",
    "progress",
]
