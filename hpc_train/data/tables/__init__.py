"""Tables in CSV, Parquet and HDF5 files, cut into blocks of rows that can be read in any order, by any rank."""
