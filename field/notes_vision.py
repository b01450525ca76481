"""What is known of the findings in vision packages."""

from field.kinds import Note

NOTES_VISION: tuple[Note, ...] = ()
