from .client import Client as Client
from .config import StudioConfig as StudioConfig
from .serve import serve as serve
from .store.accounts import Quota as Quota
from .store.store import AccountStore as AccountStore
from .store.store import open_store as open_store
