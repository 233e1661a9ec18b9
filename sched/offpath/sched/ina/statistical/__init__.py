"""Statistical INA: all jobs share links and switch memory packet by packet; this estimates what each job gets."""
