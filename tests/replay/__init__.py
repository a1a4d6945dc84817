"""The oracle of diagnoses: situations that were judged once, judged again."""
