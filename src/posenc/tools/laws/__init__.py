"""What a scheme's mathematics promises, measured: functions that return data and assert nothing."""
