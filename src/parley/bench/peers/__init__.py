"""Other systems under the same load, in the same run, on the same machine: `parley bench peers`."""
