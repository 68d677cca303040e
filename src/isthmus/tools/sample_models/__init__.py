"""The small models that README and the documents use, each written from its description here."""
