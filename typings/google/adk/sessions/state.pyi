class State:
    APP_PREFIX: str
    USER_PREFIX: str
    TEMP_PREFIX: str
