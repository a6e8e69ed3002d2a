"""The tables of the simulated GPU's results: what `.ci/tables` compares."""
