"""The services of a broker: one table of questions, with who may ask each, what it costs and how it is answered."""
