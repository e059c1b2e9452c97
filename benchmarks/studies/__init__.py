"""Studies of learning: cold start, SASRec, a dense retriever, calibration."""
