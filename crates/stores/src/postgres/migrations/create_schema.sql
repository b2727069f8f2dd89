create schema "SCHEMA"
